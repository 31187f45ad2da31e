"""A small shop: products with a stock, buyers, orders, and a nightly report."""
