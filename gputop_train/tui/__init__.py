"""The live screen. Only this package knows Textual; `app` opens it."""
