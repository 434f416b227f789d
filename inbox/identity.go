package inbox

import (
	"crypto/sha256"
	"fmt"

	"github.com/google/uuid"
)

// RecordID returns the id under which the group records e: that of the event, or one made of its type and dedupe key if
// Config.Identity is ByDedupeKey and it has such a key.
func (i *Inbox) RecordID(e Event) uuid.UUID {
	if i.cfg.Identity != ByDedupeKey || e.DedupeKey == "" {
		return e.ID
	}
	return KeyID(e.Type, e.DedupeKey)
}

// KeyID returns the id under which ByDedupeKey records the events of a type that have a dedupe key. It is a UUID of
// version 8: a SHA-256 of both texts, which no event has as its own id.
func KeyID(kind, dedupeKey string) uuid.UUID {
	hash := sha256.New()
	_, _ = fmt.Fprintf(hash, "%d/%s/%s", len(kind), kind, dedupeKey) // a hash never fails
	id := uuid.UUID(hash.Sum(nil)[:16])
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	return id
}
