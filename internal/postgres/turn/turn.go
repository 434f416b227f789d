// Package turn says which turn an event of a queue topic has that takes turns or has limits. Events of one turn are
// claimed in the order in which they are due, and a claim takes from every turn. The turn is also where a claim finds
// the keys of the event's limits.
package turn

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// The values of a limit's per that are not templates.
const (
	perTopic  = ""
	perTenant = "tenant"
)

// fairTag begins the turns of topics that have no limits. The SQL function enqueue writes it too.
const fairTag = "tenant"

// Shape says what the turns of a topic are made of: its tag, then the tenant if the topic is fair by tenant or has a
// limit per tenant, then the keys of the other limits. The zero Shape means that the events have no turns.
type Shape struct {
	tag    string
	tenant bool
	pers   []string // of the limits
}

// ShapeOf returns the shape of the turns of a topic with limits per pers.
func ShapeOf(topic string, fair bool, pers []string) Shape {
	switch {
	case len(pers) == 0 && !fair:
		return Shape{}
	case len(pers) == 0:
		return Shape{tag: fairTag, tenant: true}
	}
	text := topic
	if fair {
		text += "\n" + fairTag
	}
	sum := sha256.Sum256([]byte(text + "\n\n" + strings.Join(pers, "\n")))
	return Shape{tag: hex.EncodeToString(sum[:4]), tenant: fair || slices.Contains(pers, perTenant), pers: pers}
}

// IsZero reports whether events have no turns.
func (s Shape) IsZero() bool { return s.tag == "" }

// Apart reports whether no limit counts events of two turns: the turns are made of one part, and no limit is of the whole
// topic.
func (s Shape) Apart() bool {
	parts := 0
	if s.tenant {
		parts++
	}
	for _, per := range s.pers {
		if per == perTopic {
			return false
		}
		if Keyed(per) {
			parts++
		}
	}
	return parts <= 1
}

// Tag is how the turns begin. Turns with another tag were made for other limits.
func (s Shape) Tag() string { return s.tag }

// Keyed reports whether a limit per needs a key of the payload.
func Keyed(per string) bool { return per != perTopic && per != perTenant }

// Part returns which part of a turn, after the tag, is the key of the limit per; 0 means that the topic has one key.
func (s Shape) Part(per string) int {
	if per == perTopic {
		return 0
	}
	part := 0
	if s.tenant {
		part++
	}
	if per == perTenant {
		return part
	}
	for _, p := range s.pers {
		if Keyed(p) {
			part++
		}
		if p == per {
			break
		}
	}
	return part
}

// Of returns the turn of an event of tenant with the keys of the limits that need one.
func (s Shape) Of(tenant string, keys []string) string {
	text := s.tag
	if s.tenant {
		text += "/" + tenant
	}
	for _, key := range keys {
		text += "/" + part(key)
	}
	return text
}

// longestKey is how long a key may be within a turn, which is in an index. A longer one is cut, and made unique by its
// hash.
const longestKey = 200

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

var unescaper = strings.NewReplacer("%25", "%", "%2F", "/")

// Key returns the key of a limit that is a part of a turn. The end of a long one is a hash.
func Key(part string) string { return unescaper.Replace(part) }

func part(key string) string {
	text := escaper.Replace(key)
	if len(text) <= longestKey {
		return text
	}
	sum := sha256.Sum256([]byte(key))
	return strings.ToValidUTF8(text[:longestKey-34], "") + "~" + hex.EncodeToString(sum[:16])
}
