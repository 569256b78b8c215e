"""Pictures and pages: graphs and bars as SVG, plots as PNG, HTML around them."""
