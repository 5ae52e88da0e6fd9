// Package jsonrpc reads and writes JSON-RPC 2.0 envelopes and changes single members of a JSON text
// in place.
//
// A gateway must forward unknown members. So an envelope is parsed only as far as its own members
// (jsonrpc, id, method, params, result, error); params and result stay the bytes that were
// received, and [Set] and [Without] copy all other bytes. Number spelling (1.0, 9007199254740993),
// escapes (\u003c), key order and spacing survive.
//
// There are two readers. [Parse] is for clients and is strict at every depth: a policy decision
// taken on one reading of an ambiguous text would be void if the next hop read it differently.
// [ParseLenient] is for servers and is strict about the envelope only: repeats and misspellings
// deep inside a payload are between the server and its client.
//
// Methods are only names here; those of notifications begin with "notifications/".
package jsonrpc
