package yamlmask_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/internal/tool/yamlmask"
)

const yaml = `version: "1"
package: events
types:
  contact:
    fields:
      email: {type: string, sensitive: true}
      city: string
  customer:
    fields:
      name: string?
      contacts: "[]contact"
      by_kind: "map[string]contact"
      groups: "[][]contact"
  state:
    enum: [open, closed]
  order_id:
    scalar: string
namespaces:
  shop:
    topics:
      order_paid:
        renamed_from: [order_settled]
        payload:
          number: int64
          state: state
          order_id: order_id?
          tags: "[]string"
          extra: json
          customer: customer
          card: {type: customer, sensitive: true, optional: true}
          token: {type: string, sensitive: true}
`

func masker(t testing.TB) *yamlmask.Masker {
	t.Helper()
	m, findings := model.Load([]byte(yaml), "outbox.yaml")
	require.False(t, findings.HasErrors(), "%v", findings)
	return yamlmask.New(m)
}

func TestSensitiveFieldsAreMasked(t *testing.T) {
	t.Parallel()
	m := masker(t)
	for in, want := range map[string]string{
		`{"number": 9007199254740993, "state": "open", "tags": ["a"], "extra": {"any": [1.50]}, "token": "s3cret"}`: `{"number":9007199254740993,"state":"open","tags":["a"],"extra":{"any": [1.50]},"token":"[masked]"}`,
		`{"customer": {"name": "<Ann>", "contacts": [{"email": "a@b", "city": "Rome"}, null]}}`:                     `{"customer":{"name":"<Ann>","contacts":[{"email":"[masked]","city":"Rome"},null]}}`,
		`{"customer": {"by_kind": {"home": {"email": "a@b", "city": "Rome"}}}}`:                                     `{"customer":{"by_kind":{"home":{"email":"[masked]","city":"Rome"}}}}`,
		`{"customer": {"groups": [[{"email": "a@b"}], []]}}`:                                                        `{"customer":{"groups":[[{"email":"[masked]"}],[]]}}`,
		`{"card": {"name": "Ann"}}`: `{"card":"[masked]"}`,
		`{"token": null}`:           `{"token":"[masked]"}`,
		`{"order_id": "o-1"}`:       `{"order_id":"o-1"}`,
		`{}`:                        `{}`,
	} {
		got, ok := m.Payload("shop/order_paid", json.RawMessage(in))
		require.True(t, ok, in)
		require.Equal(t, want, string(got))
	}
}

// A payload of another version may have sensitive values where this YAML has none.
func TestWhatTheYAMLDoesNotDescribeIsMasked(t *testing.T) {
	t.Parallel()
	m := masker(t)
	for in, want := range map[string]string{
		`{"iban": "DE00", "Token": "s3cret", "number": 1}`: `{"iban":"[masked]","Token":"[masked]","number":1}`,
		`{"customer": "Ann"}`:                              `{"customer":"[masked]"}`,
		`{"customer": ["Ann"]}`:                            `{"customer":"[masked]"}`,
		`{"customer": {"contacts": "a@b"}}`:                `{"customer":{"contacts":"[masked]"}}`,
		`{"customer": {"contacts": ["a@b"]}}`:              `{"customer":{"contacts":["[masked]"]}}`,
		`["s3cret"]`:                                       `"[masked]"`,
		`{"number": {"iban": "DE00"}, "state": ["DE00"]}`:  `{"number":"[masked]","state":"[masked]"}`,
		`{"tags": "DE00"}`:                                 `{"tags":"[masked]"}`,
		`{"tags": [["DE00"], {"iban": "DE00"}, 1, null]}`:  `{"tags":["[masked]","[masked]",1,null]}`,
	} {
		got, ok := m.Payload("shop/order_paid", json.RawMessage(in))
		require.True(t, ok, in)
		require.Equal(t, want, string(got))
	}
}

func TestEarlierNamesOfTopicsAreKnown(t *testing.T) {
	t.Parallel()
	got, ok := masker(t).Payload("shop/order_settled", json.RawMessage(`{"number": 1, "token": "s3cret"}`))
	require.True(t, ok)
	require.Equal(t, `{"number":1,"token":"[masked]"}`, string(got))
}

func TestPayloadsOfUnknownTopicsAreNotShown(t *testing.T) {
	t.Parallel()
	for topic, m := range map[string]*yamlmask.Masker{"shop/other": masker(t), "shop/order_paid": nil} {
		got, ok := m.Payload(topic, json.RawMessage(`{}`))
		require.False(t, ok)
		require.Nil(t, got)
	}
	_, ok := masker(t).Payload("shop/order_paid", json.RawMessage(`{`))
	require.False(t, ok)
}
