"""What every customer has bought, in cents. The numbers that accounting trusts."""
