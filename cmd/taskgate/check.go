package main

import (
	"flag"
	"fmt"
	"io"

	"taskgate/gateway/config"
)

// check loads each file as serve would and reports all mistakes of all files.
// It needs the environment that serve will have: an unset variable is one.
func check(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() == 0 {
		return misuse(stderr, "check needs the name of a file")
	}
	code := exitOK
	for _, file := range flags.Args() {
		c, err := config.Load(file)
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = exitFailure
			continue
		}
		for _, warning := range c.Warnings() {
			fmt.Fprintf(stderr, "%s: warning: %s\n", file, warning)
		}
		found := count(len(c.Upstreams), "upstream")
		if c.Store == config.StoreFile {
			path, err := stateFolder(folderOfFile(file))
			if err != nil {
				path = "memory, for want of a folder: " + err.Error()
			}
			found += ", tasks in " + path
		}
		code = max(code, output(stdout, stderr, fmt.Sprintf("%s: ok (%s)\n", file, found)))
	}
	return code
}

// schema prints the JSON Schema of the configuration file.
func schema(args []string, stdout, stderr io.Writer) int {
	if code, done := noArguments("schema", args, stdout, stderr); done {
		return code
	}
	return output(stdout, stderr, string(config.Schema()))
}

// count writes a number and its noun.
func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
