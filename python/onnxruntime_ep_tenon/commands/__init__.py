"""One module per subcommand of `tenon`: SUMMARY, add_arguments(parser), run(arguments)."""
