package outboxtest_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/outboxtest"
	"github.com/outboxgen/outboxgen/payload"
)

// paidV1 and paid are two versions of a payload.
type paidV1 struct {
	Cents int64 `json:"cents"`
}

type paid struct {
	Amount   int64   `json:"amount"`
	Currency *string `json:"currency,omitempty"`
}

func TestRequireDecodes(t *testing.T) {
	t.Parallel()
	paidWith := func(step func(paidV1) (paid, error)) *outbox.UntypedTopic {
		return outbox.NewTopic[paid](outbox.TopicSpec{Namespace: "shop", Name: "paid", Version: 2, History: []payload.Upcaster{payload.Upcast(1, step)}}).Untyped()
	}
	topic := paidWith(func(old paidV1) (paid, error) { return paid{Amount: old.Cents}, nil })
	write := func(content string) string {
		file := filepath.Join(t.TempDir(), "outbox.frozen.json")
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		return file
	}
	good := write(`{"shop/paid": {"1": [{"cents": 7}], "2": [{"amount": 9007199254740993, "currency": "CHF"}, {"amount": 1}]}}`)
	outboxtest.RequireDecodes(t, good, topic)

	for _, c := range []struct {
		name, file string
		topics     []*outbox.UntypedTopic
		want       string
	}{
		{"a topic is not named", good, nil, "there are examples of shop/paid: pass this topic to RequireDecodes"},
		{"a step fails", good, []*outbox.UntypedTopic{paidWith(func(paidV1) (paid, error) { return paid{}, errors.New("no rate") })}, "example 1 of version 1 of shop/paid: upcast payload from version 1: no rate"},
		{"a field is lost", write(`{"shop/paid": {"2": [{"amount": 1, "total": 2}]}}`), []*outbox.UntypedTopic{topic}, `example 1 of version 2 of shop/paid: it is {"amount":1} when it is encoded again, and was {"amount": 1, "total": 2}`},
		{"a type does not fit", write(`{"shop/paid": {"1": [{"cents": "7"}]}}`), []*outbox.UntypedTopic{topic}, "example 1 of version 1 of shop/paid: decode payload"},
		{"a version is unknown", write(`{"shop/paid": {"3": [{}]}}`), []*outbox.UntypedTopic{topic}, "example 1 of version 3 of shop/paid: "},
		{"not JSON", write(`{`), nil, "read examples: "},
		{"no file", filepath.Join(t.TempDir(), "none.json"), nil, "outboxgen freeze writes them"},
	} {
		require.Contains(t, failure(t, func(t testing.TB) { outboxtest.RequireDecodes(t, c.file, c.topics...) }), c.want, c.name)
	}
}
