package masking_test

import (
	"encoding/json"
	"math/big"
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/payloads/masking"
)

type node struct {
	Name     string `json:"name"`
	Secret   string `json:"secret" outbox:"sensitive"`
	Children []node `json:"children"`
}

// many contains itself without a struct.
type many []many

type embedded struct {
	Inner string `json:"inner"`
}

// custom has JSON of which its type says nothing.
type custom struct{ Hidden string }

func (custom) MarshalJSON() ([]byte, error) { return []byte(`{"any":1}`), nil }

type payload struct {
	embedded
	Embedded2
	ID      uuid.UUID       `json:"id"`
	At      *time.Time      `json:"at,omitempty"`
	Wait    time.Duration   `json:"wait"`
	Raw     []byte          `json:"raw"`
	Any     json.RawMessage `json:"any"`
	Thing   any             `json:"thing"`
	Custom  custom          `json:"custom"`
	Large   *big.Int        `json:"large"`
	Tree    *node           `json:"tree"`
	Nodes   map[string]node `json:"nodes"`
	Pair    [2]int          `json:"pair"`
	Sum     [2]byte         `json:"sum"`
	Many    many            `json:"many"`
	Omitted string          `json:"-"`
	GoName  string
	hidden  string
	Card    map[string]string `json:"card" outbox:"sensitive"`
	Note    string            `json:"note" outbox:"sealed"`
}

// Embedded2 is an embedded struct that is exported.
type Embedded2 struct {
	Other string `json:"other"`
}

func TestShapeOfGoTypes(t *testing.T) {
	t.Parallel()
	_ = payload{}.hidden
	s := masking.Of(reflect.TypeFor[payload]())
	for in, want := range map[string]string{
		`{"id":"x","at":"t","wait":1,"raw":"eA=="}`:                         `{"id":"x","at":"t","wait":1,"raw":"eA=="}`,
		`{"id":["x"],"at":{"t":1},"wait":[],"raw":{}}`:                      `{"id":"[masked]","at":"[masked]","wait":"[masked]","raw":"[masked]"}`,
		`{"any":{"x":[1]},"thing":[{}],"custom":{"any":1},"large":12}`:      `{"any":{"x":[1]},"thing":[{}],"custom":{"any":1},"large":12}`,
		`{"tree":{"name":"a","secret":"s","children":[{"secret":"s"}]}}`:    `{"tree":{"name":"a","secret":"[masked]","children":[{"secret":"[masked]"}]}}`,
		`{"tree":null,"nodes":{"a":{"name":"n","secret":null}},"pair":[1]}`: `{"tree":null,"nodes":{"a":{"name":"n","secret":"[masked]"}},"pair":[1]}`,
		`{"sum":[1,255]}`:    `{"sum":[1,255]}`,
		`{"many":[[],[[]]]}`: `{"many":[[],[[]]]}`,
		`{"many":[["x"]]}`:   `{"many":[["[masked]"]]}`,
		`{"inner":"x","other":"x","Omitted":"x","hidden":"x","Hidden":1}`: `{"inner":"[masked]","other":"[masked]","Omitted":"[masked]","hidden":"[masked]","Hidden":"[masked]"}`,
		`{"GoName":"x","goname":"x","card":{"a":"b"},"a\u0022b":1.0}`:     `{"GoName":"x","goname":"[masked]","card":"[masked]","a\"b":"[masked]"}`,
		`{"note":"x"}`:                `{"note":"[masked]"}`,
		`{"Embedded2":{"other":"x"}}`: `{"Embedded2":"[masked]"}`,
		` null `:                      `null`,
		`"x"`:                         `"[masked]"`,
	} {
		got, ok := s.Mask(json.RawMessage(in))
		require.True(t, ok, in)
		require.Equal(t, want, string(got))
	}
	for _, in := range []string{"", "{", `{"a":}`, "\xff"} {
		got, ok := s.Mask(json.RawMessage(in))
		require.False(t, ok, in)
		require.Nil(t, got)
	}
}
