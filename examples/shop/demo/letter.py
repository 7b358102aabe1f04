"""One dead letter, in the words that it carries itself."""

from __future__ import annotations

from typing import Any

# The one that failed deepest, where there is a choice: in the handler's own statement.
_ONE_LETTER = """
SELECT l.id, l.topic, l.partition, l."offset", l.key, l.reason, l.error_class, l.error_message, l.handler, l.attempts,
    l.tenant, l.brand, l.event_id, l.event_type
FROM tidegate.dead_letter AS l
JOIN tidegate.job AS j ON j.id = l.job
WHERE j.code = 'customer-ledger'
ORDER BY (l.reason = 'handler_failed') DESC, (l.handler <> '') DESC, l.id
LIMIT 1
"""


async def one_letter(database: Any) -> str:
    """A few lines of text; empty if there is no dead letter."""
    row = await database.fetchrow(_ONE_LETTER)
    if row is None:
        return ""
    lines = {
        "letter": row["id"],
        "record": f"{row['topic']}:{row['partition']}:{row['offset']}",
        "key": row["key"],
        "event": f"{row['event_type']} {row['event_id']} of {row['tenant']}/{row['brand']}",
        "reason": f"{row['reason']} after {row['attempts']} attempts",
        "error": f"{row['error_class']}: {row['error_message']}",
        "handler": row["handler"],
    }
    return "\n".join(f"  {name:8} {value}" for name, value in lines.items())
