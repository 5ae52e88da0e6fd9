package journal

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
)

// A file begins with a line that names the format, a random salt, and the CRC-32C of both. Records
// follow:
//
//	mark      4 bytes, always the same
//	length    4 bytes, of the payload
//	checksum  4 bytes, CRC-32C of salt, length and payload
//	payload   entries, each preceded by its length as a varint
//
// One sync makes one record durable: after a crash all of it is there, or none. A record without
// entries says that the files before this one may go. The salt keeps a payload from looking like a
// record.
const (
	format     = 1
	firstLine  = "taskgate journal "
	saltSize   = 8
	headerSize = len(firstLine) + 2 + saltSize + 4
	recordSize = 12 // without payload
)

var (
	recordMark = []byte{0xf7, 't', 'g', 0xf8}
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// newHeader makes the header of a file.
func newHeader() []byte {
	header := fmt.Appendf(nil, "%s%d\n", firstLine, format)
	header = append(header, make([]byte, saltSize)...)
	_, _ = rand.Read(header[len(header)-saltSize:]) // it always succeeds
	return binary.BigEndian.AppendUint32(header, crc32.Checksum(header, castagnoli))
}

// errNewer says that a later version has written a file.
var errNewer = errors.New("written by a newer taskgate")

// errHeader says that a file lacks the header of a journal.
var errHeader = errors.New("it does not begin as a journal")

// parseHeader reads the header from the beginning of a file, and returns the salt.
func parseHeader(header []byte) (salt []byte, err error) {
	line, rest, _ := bytes.Cut(header, []byte{'\n'})
	number, named := strings.CutPrefix(string(line), firstLine)
	n, err := strconv.Atoi(number)
	switch {
	case named && err == nil && n > format:
		return nil, fmt.Errorf("%w: it has format %d, and this one reads format %d", errNewer, n, format)
	case !named || err != nil || n != format || len(header) != headerSize:
		return nil, errHeader
	case crc32.Checksum(header[:headerSize-4], castagnoli) != binary.BigEndian.Uint32(header[headerSize-4:]):
		return nil, errHeader
	}
	return rest[:saltSize], nil
}

// appendRecord appends a record.
func appendRecord(to, salt, payload []byte) []byte {
	to = append(to, recordMark...)
	to = binary.BigEndian.AppendUint32(to, uint32(len(payload)))
	to = binary.BigEndian.AppendUint32(to, checksum(salt, payload))
	return append(to, payload...)
}

func checksum(salt, payload []byte) uint32 {
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(payload)))
	sum := crc32.Update(0, castagnoli, salt)
	sum = crc32.Update(sum, castagnoli, length[:])
	return crc32.Update(sum, castagnoli, payload)
}

// firstRecord returns the payload of the record that data begins with; ok is false if that record
// is not whole.
func firstRecord(data, salt []byte) (payload []byte, ok bool) {
	if len(data) < recordSize || !bytes.HasPrefix(data, recordMark) {
		return nil, false
	}
	n := uint64(binary.BigEndian.Uint32(data[4:]))
	if n > uint64(len(data)-recordSize) {
		return nil, false
	}
	payload = data[recordSize : recordSize+n]
	return payload, binary.BigEndian.Uint32(data[8:]) == checksum(salt, payload)
}

// holdsRecord reports whether a whole record is anywhere in data. If so, the broken bytes before it
// are damage: a write that a crash has cut short is the last one.
func holdsRecord(data, salt []byte) bool {
	for {
		i := bytes.Index(data, recordMark)
		if i < 0 {
			return false
		}
		if _, ok := firstRecord(data[i:], salt); ok {
			return true
		}
		data = data[i+1:]
	}
}

// cutEntry takes the first entry off a payload.
func cutEntry(payload []byte) (entry, rest []byte, ok bool) {
	n, size := binary.Uvarint(payload)
	if size <= 0 || n > uint64(len(payload)-size) {
		return nil, nil, false
	}
	return payload[size : size+int(n)], payload[size+int(n):], true
}
