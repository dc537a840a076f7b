"""Sessions at a PostgreSQL server: settings, transactions, locks, and its errors in our terms.

In: a URL. Out: cursors in transactions.
Imported by all that asks the server, also for views that are kept in PostgreSQL.
"""
