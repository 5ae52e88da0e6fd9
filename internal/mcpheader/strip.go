package mcpheader

// Strip returns an input schema without its annotations, wherever they stand. It is for tools of
// servers to which the word means nothing: a client that takes it for an annotation would send
// headers that those servers ignore. A property that is called x-mcp-header stays, and so does
// every other byte. A part that nests too deeply stays as it is.
func Strip(inputSchema []byte) []byte { return walkSchema(inputSchema).stripped() }
