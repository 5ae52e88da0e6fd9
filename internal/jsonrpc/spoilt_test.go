package jsonrpc

import (
	"fmt"
	"testing"
)

func TestReadSpoilt(t *testing.T) {
	for text, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"result":{"value":NaN}}`:                             "true [7]",
		` {"jsonrpc":"2.0","id":"7","result":{"value":NaN}}`:                          "true [7]",
		`{"jsonrpc":"2.0","id":null,"error":{"code":NaN}}`:                            "true []",
		`working...{"jsonrpc":"2.0","id":7,"result":{"method":1}}`:                    "false [7]",
		`{"jsonrpc":"2.0","id":7}`:                                                    "false [7]", // JavaScript leaves an undefined result out
		`{"id":7,"result":{}}`:                                                        "false [7]",
		`{"jsonrpc":"2.0","id":7,"result":{"rows":[{"id":"x"}],"value":NaN}}`:         "true [7]",
		`{"jsonrpc":"2.0","result":{"rows":[{"id":"a","v":NaN}]},"id":"b"}`:           "true [b]",
		`{"jsonrpc":"2.0","params":{"error":1,"id":3,"v":NaN},"method":"x"}`:          "false []",
		`{"jsonrpc":"2.0","id":7,"result":{"text":"cut`:                               "true [7]",
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"result":NaN}}`: "false []",
		`received {"jsonrpc":"2.0","id":7,"method":"work"}`:                           "false []",
		`{"type":"heartbeat","id":7}`:                                                 "false []",
		`{"error":"jsonrpc`:                                                           "false []",
		`hello`:                                                                       "false []",
	} {
		answer, id := ReadSpoilt([]byte(text))
		if got := fmt.Sprintf("%v [%s]", answer, id); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
