// Package translate turns what one era says into what the other expects (protocol.md 7). It takes
// results, params, capabilities and tools, as bytes of a client or a server, and replaces single
// members of them; all other members stay byte for byte. Its functions are pure (design.md 0.8).
package translate
