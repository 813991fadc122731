// halfstep: parse, call, print. Each subcommand has a file of its own beside this one.
int main() { return 0; }
