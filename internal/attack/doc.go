// Package attack has no code: its tests are hostile clients and servers of one gateway, each with an honest client
// beside it. They check that the gateway stays within the memory that docs/operations.md names for a container of
// 1 GiB, and write the table of docs/security.md. "make attack" runs them.
package attack
