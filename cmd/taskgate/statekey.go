package main

import (
	"encoding/base64"
	"io"

	"taskgate/gateway/sealed"
)

// stateKey prints a new key for state_keys of the configuration.
func stateKey(args []string, stdout, stderr io.Writer) int {
	if code, done := noArguments("state-key", args, stdout, stderr); done {
		return code
	}
	return output(stdout, stderr, base64.StdEncoding.EncodeToString(sealed.NewSecret())+"\n")
}
