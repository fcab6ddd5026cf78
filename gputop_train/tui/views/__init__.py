"""What each page shows besides the overview's parts: frozen records, one module a page."""
