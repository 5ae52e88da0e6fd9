//go:build unix

package proc

import (
	"io"
	"net"
)

// reserve keeps a port from the FreeAddr of other processes: by a UDP socket on the port of the same number.
func reserve(addr string) (io.Closer, error) { return net.ListenPacket("udp", addr) }
