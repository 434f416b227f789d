// Package topiclane says in which lane of the queue an event is. Events of one lane are claimed in the order in which
// they are due, and a claim takes from every lane. Rows that were written by hand without a lane are in lane 0.
package topiclane

import (
	"crypto/sha256"
	"encoding/binary"
)

// turns is the bit that the lanes of events that take turns have.
const turns = 1 << 30

// Of returns the lane of the events of a topic. The SQL function lane computes the same. Two topics may have the same
// lane.
func Of(topic string) int32 {
	sum := sha256.Sum256([]byte(topic))
	return int32(binary.BigEndian.Uint32(sum[:]) % turns)
}

// OfTurns returns the lane of the events of a topic that have a turn. Claims that know nothing of turns do not walk it.
func OfTurns(topic string) int32 { return Of(topic) | turns }

// HasTurns reports whether the events of a lane have turns.
func HasTurns(lane int32) bool { return lane&turns != 0 }
