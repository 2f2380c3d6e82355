"""All domains behind the mux, and a model that says what they must answer."""
