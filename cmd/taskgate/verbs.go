package main

import (
	"flag"
	"fmt"
	"io"
	"strings"

	"taskgate/gateway/config"
	"taskgate/gateway/operator/terminal"
)

// checkNamed looks at the files that a configuration names, as serve will. It returns what is wrong, with keys.
func checkNamed(c *config.Config) (wrong []string) {
	add := func(key string, err error) {
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				wrong = append(wrong, key+line)
			}
		}
	}
	if c.TLS.CertFile != "" {
		_, err := listenerTLS(c.TLS)
		add("tls.", err)
	}
	_, err := clientTLS(c.StoreTLS)
	add("store_tls.", err)
	for i, u := range c.Upstreams {
		_, err := clientTLS(u.TLS)
		add(fmt.Sprintf("upstreams[%d].tls.", i), err)
	}
	add("audit: ", checkAudit(c.Audit))
	return wrong
}

// checkFiles loads each file as serve would and reports all mistakes of all files. It needs the
// environment of serve, because an unset variable is a mistake.
func checkFiles(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("check", flag.ContinueOnError)
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() == 0 {
		return reportMisuse(stderr, "check needs the name of a file")
	}
	code := exitOK
	for _, file := range flags.Args() {
		c, err := config.Load(file)
		if err != nil {
			fmt.Fprintln(stderr, err)
			code = exitFailure
			continue
		}
		if wrong := checkNamed(c); len(wrong) > 0 {
			for _, line := range wrong {
				fmt.Fprintf(stderr, "%s: %s\n", file, line)
			}
			code = exitFailure
			continue
		}
		for _, warning := range c.Warnings() {
			fmt.Fprintf(stderr, "%s: warning: %s\n", file, warning)
		}
		found := terminal.Count(len(c.Upstreams), "upstream")
		if c.Store == config.StoreFile {
			path, err := stateFolder(folderOfFile(file))
			if err != nil {
				path = "memory, for want of a folder: " + err.Error()
			}
			found += ", tasks in " + path
		}
		code = max(code, writeOutput(stdout, stderr, fmt.Sprintf("%s: ok (%s)\n", file, found)))
	}
	return code
}

const (
	// maxKey bounds a key, in bytes, so that it fits beside the other headers of a request.
	maxKey = 16 << 10
	// shortKey is the length below which even a random key can be guessed: its hash has no salt.
	shortKey = 20
	// fewCharacters is the number of different characters below which a key is surely not random.
	fewCharacters = 8
)

// hashKey prints the hash of the key on standard input, for the configuration. It removes the line
// break that echo and openssl add.
func hashKey(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("hash-key", flag.ContinueOnError)
	force := flags.Bool("force", false, "")
	if code, done := parseFlags(flags, args, stdout, stderr); done {
		return code
	}
	if flags.NArg() > 0 {
		// A key on the command line would be visible to others.
		return reportMisuse(stderr, "hash-key reads the key from standard input and takes no arguments besides --force")
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxKey+1))
	if err != nil {
		return reportFailure(stderr, fmt.Errorf("hash-key: %w", err))
	}
	key := strings.TrimRight(string(data), "\r\n")
	if len(key) > maxKey || !config.ValidKey(key) {
		fmt.Fprintln(stderr, "taskgate: hash-key: no key that a client can send: it needs letters, digits and -._~+/, perhaps with = at the end")
		return exitFailure
	}
	if isWeak(key) {
		fmt.Fprintf(stderr, "taskgate: hash-key: this key is weak enough to be guessed from its hash; use at least %d random characters\n", shortKey)
		if !*force {
			fmt.Fprintln(stderr, "taskgate: hash-key: it is not hashed; --force does so all the same")
			return exitFailure
		}
	}
	return writeOutput(stdout, stderr, config.HashKey(key)+"\n")
}

// isWeak reports whether a key is short, or made of few characters.
func isWeak(key string) bool {
	different := map[rune]bool{}
	for _, c := range key {
		different[c] = true
	}
	return len(key) < shortKey || len(different) < fewCharacters
}
