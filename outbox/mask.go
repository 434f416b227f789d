package outbox

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/internal/payloads/masking"
)

// MaskPayload returns the payload of an event of "namespace/topic" as people may see it, with "[masked]" in place of
// the values of sensitive fields: those whose struct tag is `outbox:"sensitive"`, at any depth. What the type of the
// payload does not describe is masked too, because it may have been sensitive in another version: members without a
// field, values that are not of the type of their field, and members of embedded structs. It returns false if topic is
// not the name, or an earlier name, of one of topics, or if the payload is not JSON; then nothing of it should be
// shown.
//
// The function MaskPayload of generated code calls it with the topics of its package.
func MaskPayload(topic string, payload json.RawMessage, topics ...*UntypedTopic) (json.RawMessage, bool) {
	namespace, name, _ := strings.Cut(topic, "/")
	i := slices.IndexFunc(topics, func(t *UntypedTopic) bool {
		return t != nil && t.spec.Namespace == namespace && (t.spec.Name == name || slices.Contains(t.spec.RenamedFrom, name))
	})
	if i < 0 {
		return nil, false
	}
	return masking.Of(topics[i].Payload()).Mask(payload)
}
