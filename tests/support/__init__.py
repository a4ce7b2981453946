"""Code that several test folders share: a summariser of marked facts, hypothesis strategies."""
