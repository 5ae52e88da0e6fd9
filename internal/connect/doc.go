// Package connect says how an MCP client is pointed at a server: it makes the entry for the client's own configuration
// file, and puts it in without touching what else is there.
//
//	c, _ := connect.Find("vscode")
//	change, err := c.Plan("", connect.Server{Name: "slow", URL: "http://127.0.0.1:8080/mcp"})
//	…
//	kept, err := change.Write()
//
// Comments, trailing commas and the order of members stay, in JSON and in TOML.
package connect
