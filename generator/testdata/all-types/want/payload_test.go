package alltypes_test

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	events "github.com/outboxgen/outboxgen/generator/testdata/all-types/want"
	"github.com/outboxgen/outboxgen/outbox"
	"github.com/outboxgen/outboxgen/payload"
)

func validPart() events.Part {
	return events.Part{Sku: "ABC-1", Weight: 1, Color: events.ColorDeepBlue, Colors: []events.Color{events.Color8bit}}
}

func validRequired() events.Required {
	return events.Required{
		StringValue:    "ein \"Text\" 世界 <&>",
		BoolValue:      true,
		Int32Value:     math.MinInt32,
		Int64Value:     math.MaxInt64,
		Float64Value:   0.1,
		UUIDValue:      uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057"),
		TimestampValue: time.Date(2026, 11, 21, 10, 0, 0, 123456789, time.UTC),
		DateValue:      payload.Date{Year: 2024, Month: time.February, Day: 29},
		DurationValue:  math.MinInt64,
		BytesValue:     []byte{0, 255},
		JSONValue:      json.RawMessage(`{"n":12345678901234567890.00}`),
		ColorValue:     events.ColorRed,
		PartValue:      validPart(),
	}
}

// TestRoundTrip writes and reads every scalar at its limits: nothing is rounded.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	want := validRequired()
	require.NoError(t, want.Validate())
	data, err := json.Marshal(want)
	require.NoError(t, err)
	require.Contains(t, string(data), `"int64_value":9223372036854775807`)
	require.Contains(t, string(data), `"duration_value":-9223372036854775808`)
	require.Contains(t, string(data), `"date_value":"2024-02-29"`)
	require.Contains(t, string(data), `12345678901234567890.00`)
	var got events.Required
	require.NoError(t, json.Unmarshal(data, &got))
	require.Equal(t, want, got)
}

func TestOptionalIsAbsent(t *testing.T) {
	t.Parallel()
	require.NoError(t, events.Optional{}.Validate())
	data, err := json.Marshal(events.Optional{})
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(data))
	data, err = json.Marshal(events.OptionalListed{})
	require.NoError(t, err)
	require.JSONEq(t, `{}`, string(data))
}

func TestOptionalIsPresent(t *testing.T) {
	t.Parallel()
	zero, bad := int64(0), "\xff"
	data, err := json.Marshal(events.Optional{Int64Value: &zero})
	require.NoError(t, err)
	require.JSONEq(t, `{"int64_value":0}`, string(data))
	require.Equal(t, []string{"string_value utf8", "json_value json", "color_value enum", "part_value.sku min_len", "part_value.sku pattern", "part_value.weight min", "part_value.color enum"},
		broken(t, events.Optional{StringValue: &bad, JSONValue: json.RawMessage(`{`), ColorValue: new(events.Color), PartValue: &events.Part{}}.Validate()))
}

// broken lists what Validate found as "field rule".
func broken(t *testing.T, err error) []string {
	t.Helper()
	require.ErrorIs(t, err, outbox.ErrPayloadInvalid)
	var invalid *payload.ValidationError
	require.ErrorAs(t, err, &invalid)
	list := make([]string, len(invalid.Fields))
	for i, f := range invalid.Fields {
		list[i] = f.Field + " " + f.Rule
	}
	return list
}

func validBounded() events.Bounded {
	return events.Bounded{
		Text: "abc", Blob: []byte{1}, Items: []string{"x"}, Entries: map[string]bool{"a": true},
		ID: uuid.New(), Day: payload.Date{Year: 2026, Month: 1, Day: 2}, Color: events.ColorRed, Ratio: 1, Small: -7, Big: math.MinInt64,
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	require.NoError(t, validBounded().Validate())
	long := strings.Repeat("x", 11)
	for want, change := range map[string]func(p *events.Bounded){
		"text min_len":         func(p *events.Bounded) { p.Text = "a" },
		"text max_len":         func(p *events.Bounded) { p.Text = long },
		"text pattern":         func(p *events.Bounded) { p.Text = "ABC" },
		"opt_text max_len":     func(p *events.Bounded) { p.OptText = pointer(strings.Repeat("1", 11)) },
		"opt_text min_len":     func(p *events.Bounded) { p.OptText = pointer("1") },
		"only_pattern pattern": func(p *events.Bounded) { p.OnlyPattern = pointer("y") },
		"opt_small min":        func(p *events.Bounded) { p.OptSmall = pointer(int32(-6)) },
		"opt_small max":        func(p *events.Bounded) { p.OptSmall = pointer(int32(6)) },
		"opt_big min":          func(p *events.Bounded) { p.OptBig = pointer(int64(-1)) },
		"ratio min":            func(p *events.Bounded) { p.Ratio = -1.6 },
		"ratio float64":        func(p *events.Bounded) { p.Ratio = math.NaN() },
		"opt_ratio max":        func(p *events.Bounded) { p.OptRatio = pointer(0.2) },
		"wait min":             func(p *events.Bounded) { p.Wait = -1 },
		"wait max":             func(p *events.Bounded) { p.Wait = 2 * time.Hour },
		"opt_wait min":         func(p *events.Bounded) { p.OptWait = pointer(-2 * time.Second) },
		"opt_wait max":         func(p *events.Bounded) { p.OptWait = pointer(4 * time.Nanosecond) },
		"blob min_len":         func(p *events.Bounded) { p.Blob = nil },
		"blob max_len":         func(p *events.Bounded) { p.Blob = make([]byte, 17) },
		"opt_blob max_len":     func(p *events.Bounded) { p.OptBlob = make([]byte, 17) },
		"items min_len":        func(p *events.Bounded) { p.Items = nil },
		"items max_len":        func(p *events.Bounded) { p.Items = make([]string, 4) },
		"items[1] utf8":        func(p *events.Bounded) { p.Items = []string{"a", "\x00"} },
		"opt_items min_len":    func(p *events.Bounded) { p.OptItems = []int64{1} },
		"entries max_len":      func(p *events.Bounded) { p.Entries = map[string]bool{"a": true, "b": true, "c": true, "d": true} },
		"entries[*].key utf8":  func(p *events.Bounded) { p.Entries = map[string]bool{"\xff": true} },
		"opt_entries[*].color enum": func(p *events.Bounded) {
			part := validPart()
			part.Color = "blue"
			p.OptEntries = map[string]events.Part{"a": part, "b": part}
		},
		"day date":   func(p *events.Bounded) { p.Day.Day = 32 },
		"color enum": func(p *events.Bounded) { p.Color = "" },
	} {
		p := validBounded()
		change(&p)
		require.Equal(t, []string{want}, broken(t, p.Validate()))
	}
}

func TestNestedPaths(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"string_value[*][1][*][0] utf8"}, broken(t, events.Deep{
		StringValue: map[string][]map[string][]string{"a": {nil, {"b": {"\xff"}}}},
	}.Validate()))
	require.Equal(t, []string{"float64_value[0][2] float64"}, broken(t, events.Nested{Float64Value: [][]float64{{1, 2, math.Inf(1)}}}.Validate()))
}

func TestDedupeKey(t *testing.T) {
	t.Parallel()
	p := validBounded()
	p.Text, p.ID = "a/b%", uuid.MustParse("01890A5D-AC96-774B-BCCE-B302099A8057")
	require.Equal(t, "b-a%2Fb%25-x/v1/-7/-9223372036854775808/01890a5d-ac96-774b-bcce-b302099a8057/2026-01-02/red", p.DedupeKey())
	p.ID = uuid.Nil
	require.Empty(t, p.DedupeKey())
}

// pointer returns a pointer to a copy of v.
func pointer[T any](v T) *T { return &v }
