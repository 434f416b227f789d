package outboxtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxgen/outboxgen/internal/machine/config"
	"github.com/outboxgen/outboxgen/outbox"
)

// RequireDecodes decodes the example payloads that outboxgen freeze has written to file, usually
// testdata/outbox.frozen.json: those of every version that was ever frozen, as a handler of topics would get them. Older
// versions pass through their upcasters. The test fails if a payload does not decode, if the present version loses a part of
// one, or if a topic of the file is missing in topics. Call it from a test in the package of the generated code.
func RequireDecodes(t testing.TB, file string, topics ...*outbox.UntypedTopic) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("read examples: %v: outboxgen freeze writes them", err)
	}
	var examples map[string]map[string][]json.RawMessage
	if err := json.Unmarshal(text, &examples); err != nil {
		t.Fatalf("read examples: %s: %v", file, err)
	}
	known := make(map[string]*outbox.UntypedTopic, len(topics))
	for _, topic := range topics {
		known[topic.String()] = topic
	}
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	for _, name := range slices.Sorted(maps.Keys(examples)) {
		topic := known[name]
		if topic == nil {
			fault("there are examples of %s: pass this topic to RequireDecodes", name)
			continue
		}
		for _, number := range slices.Sorted(maps.Keys(examples[name])) {
			version, err := strconv.Atoi(number)
			if err != nil {
				fault("%q is not a version of %s", number, name)
				continue
			}
			for i, payload := range examples[name][number] {
				if err := decodes(topic, version, payload); err != nil {
					fault("example %d of version %d of %s: %v", i+1, version, name, err)
				}
			}
		}
	}
	if len(faults) > 0 {
		t.Fatalf("%s:\n\t%s", file, strings.Join(faults, "\n\t"))
	}
}

// decodes reports why a handler of topic does not get payload, or gets less than it.
func decodes(topic *outbox.UntypedTopic, version int, payload json.RawMessage) error {
	decoder := config.Opener(topic)
	p, err := decoder.Decode(version, payload)
	if err != nil || version < topic.Version() {
		return err
	}
	again, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode payload: %w", err)
	}
	if !bytes.Equal(canonical(payload), canonical(again)) {
		return fmt.Errorf("it is %s when it is encoded again, and was %s", again, payload)
	}
	return nil
}

// canonical returns a JSON value with sorted names and without space. Numbers keep their digits.
func canonical(value []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return value
	}
	sorted, err := json.Marshal(v)
	if err != nil {
		return value
	}
	return sorted
}
