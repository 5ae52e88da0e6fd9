package peers

// direct is no gateway at all: the client calls the server itself.
var direct = Peer{Name: "directly", Way: NoPeer, Path: "/mcp", Settings: "no gateway"}
