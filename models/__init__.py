"""Model generators, the quantiser, and the means to judge a result."""
