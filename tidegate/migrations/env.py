"""Alembic's entry: runs revisions on the connection that `tidegate.migrations.schema` hands over."""

from alembic import context

from tidegate.migrations.revisions import VERSION_SCHEMA, VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    version_table_schema=VERSION_SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
