// Package check holds what writers committed against what handlers saw. It knows nothing of the outbox: its input is the
// history, to which writers and handlers have appended lines, and rows that were read from the business tables.
package check

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// The kinds of lines.
const (
	Tx    = "tx"    // a writer says how the transaction of some events ends
	Call  = "call"  // a handler says what it does with an event
	Fault = "fault" // something was done to the system
	Still = "still" // a process stood still until now, for a while
	Moved = "moved" // an operator took the leases of a handler from whoever had them, and was done with it now
	Bad   = "bad"   // a process saw an answer that is wrong
	// Behind: a process that has ended in order has left a goroutine, whose stack this is.
	Behind = "behind"
)

// What a writer says of a transaction. It is Unknown from before the commit is sent.
const (
	Unknown   = "unknown"
	Committed = "committed"
	Aborted   = "aborted"
)

// What a handler says of an event.
const (
	Start = "start"
	Done  = "done"
	Fail  = "fail"
	Gone  = "gone" // it failed for good
	Told  = "told" // it was told that its lease is over, while it ran
)

// ID is the id of an event, which is a UUID.
type ID [16]byte

// String writes the id with its hyphens.
func (id ID) String() string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// MarshalText is String.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads what String writes.
func (id *ID) UnmarshalText(text []byte) error {
	b, err := hex.DecodeString(strings.ReplaceAll(string(text), "-", ""))
	if err != nil || len(b) != len(id) {
		return fmt.Errorf("read id %q: not a UUID", text)
	}
	copy(id[:], b)
	return nil
}

// Line is one line of the history.
type Line struct {
	Kind string `json:"k"`
	At   int64  `json:"at"` // microseconds of the machine's clock, also where a process has another one
	Who  string `json:"who"`
	Say  string `json:"say"` // the kind of a fault; what is wrong
	Tx   string `json:"tx,omitempty"`
	// Events are those of a transaction.
	Events []ID `json:"events,omitempty"`
	// Event is that of a call, with what its payload says.
	Event   ID     `json:"e,omitzero"`
	Handler string `json:"h,omitempty"`
	// Call is the number of the call within its process, from 1 on; 0 if the event is not leased.
	Call int64 `json:"c,omitempty"`
	// For is how long it took, in microseconds.
	For     int64  `json:"for,omitempty"`
	Attempt int    `json:"a,omitempty"`
	Topic   string `json:"topic,omitempty"`
	Item    string `json:"item,omitempty"`
	N       int64  `json:"n,omitempty"`
}

// Lines calls f for each line of a history, in the order in which they were appended. It returns how many lines are torn,
// because their process was killed as it wrote them.
func Lines(r io.Reader, f func(Line)) (torn int, err error) {
	in := bufio.NewScanner(r)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		if len(bytes.TrimSpace(in.Bytes())) == 0 {
			continue
		}
		var l Line
		if json.Unmarshal(in.Bytes(), &l) != nil {
			torn++
			continue
		}
		f(l)
	}
	if err := in.Err(); err != nil {
		return torn, fmt.Errorf("read history: %w", err)
	}
	return torn, nil
}
