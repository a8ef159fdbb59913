"""`python -m flexinfer` is the command `flexinfer`."""

from flexinfer.cli.main import main

main()
