package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"taskgate/gateway/config"
)

const (
	// maxKey bounds what is read for a key. Longer ones would not fit beside the
	// other headers of a request.
	maxKey = 16 << 10
	// shortKey is the length below which even a random key invites guessing: its
	// hash is not salted.
	shortKey = 20
)

// hashKey prints the hash of the key on standard input, for the configuration. The
// line break that echo and openssl add is no part of the key.
func hashKey(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("hash-key", flag.ContinueOnError)
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() > 0 {
		// Nor would it be a secret any more: others see the command line.
		return misuse(stderr, "hash-key reads the key from standard input and takes no arguments")
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxKey+1))
	if err != nil {
		fmt.Fprintf(stderr, "taskgate: hash-key: %v\n", err)
		return exitFailure
	}
	key := strings.TrimRight(string(data), "\r\n")
	if len(key) > maxKey || !config.ValidKey(key) {
		fmt.Fprintln(stderr, "taskgate: hash-key: no key that a client can send: it needs letters, digits and -._~+/, perhaps with = at the end")
		return exitFailure
	}
	if len(key) < shortKey {
		fmt.Fprintf(stderr, "taskgate: hash-key: this key is short enough to be guessed from its hash; use at least %d random characters\n", shortKey)
	}
	return output(stdout, stderr, config.HashKey(key)+"\n")
}
