"""`python -m webhook` is the same program as `gpu-webhook`."""

from webhook.cli.main import main

if __name__ == "__main__":
    main()
