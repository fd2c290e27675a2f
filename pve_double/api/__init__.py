"""The handlers of the API's methods, and the table of them."""
