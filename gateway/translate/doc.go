// Package translate turns what one era says into what the other expects (protocol.md 7). In
// come results, params, capabilities and tools, as bytes that a client or a server wrote.
// Out come spliced bytes, in which everything survives that is not named here; nothing is
// kept, and nobody is asked (design.md 0.8).
package translate
