// Package tenantlane says in which lane of the queue an event is. Events of one lane are claimed in the order in which
// they are due, and a claim takes from every lane.
package tenantlane

import (
	"crypto/sha256"

	"github.com/google/uuid"
)

// Count is how many lanes a namespace has. The schema has the same number.
const Count = 32

// Of returns the lane of the events of a topic, or of one of its tenants if the topic is fair by tenant. The SQL
// function lane computes the same.
func Of(topic string, tenant uuid.NullUUID) int16 {
	text := make([]byte, 0, 96)
	text = append(text, topic...)
	if tenant.Valid {
		text = append(text, '/')
		text = append(text, tenant.UUID.String()...)
	}
	sum := sha256.Sum256(text)
	return int16(sum[0] % Count)
}
