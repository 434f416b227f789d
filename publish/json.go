package publish

import (
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/outbox"
)

// JSON returns an Encoder that does not change the payload and puts the facts of the event into headers: outbox-id,
// outbox-type (Outgoing.Type), outbox-version, outbox-time (of the enqueue), outbox-tenant-id, outbox-entity-type,
// outbox-entity-id, outbox-entity-version, outbox-partition-key, outbox-dedupe-key, outbox-causation-id and
// outbox-correlation-id. The last two are the event's headers causation_id and correlation_id, whose underscores some
// proxies would drop. Facts that the event does not have are left out, as is an entity version of 0. The event's other
// headers are sent too, except those with the name of a fact in any case.
func JSON() Encoder {
	return func(o Outgoing) (Message, error) {
		facts := map[string]string{
			"outbox-id":             o.ID.String(),
			"outbox-type":           o.Type(),
			"outbox-version":        strconv.Itoa(max(o.Version, 1)),
			"outbox-time":           instant(o.CreatedAt),
			"outbox-tenant-id":      tenant(o),
			"outbox-entity-type":    o.Entity.Type,
			"outbox-entity-id":      o.Entity.ID,
			"outbox-entity-version": entityVersion(o),
			"outbox-partition-key":  o.PartitionKey,
			"outbox-dedupe-key":     o.DedupeKey,
			"outbox-causation-id":   o.Headers[outbox.CausationHeader],
			"outbox-correlation-id": o.Headers[outbox.CorrelationHeader],
		}
		headers := make(map[string]string, len(facts)+len(o.Headers))
		for name, value := range o.Headers {
			if name == outbox.CausationHeader || name == outbox.CorrelationHeader {
				continue
			}
			if _, fact := facts[strings.ToLower(name)]; !fact {
				headers[name] = value
			}
		}
		for name, value := range facts {
			if value != "" {
				headers[name] = value
			}
		}
		return Message{ContentType: jsonType, Headers: headers, Body: o.Payload}, nil
	}
}
