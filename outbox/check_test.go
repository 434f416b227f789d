package outbox_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/outbox"
)

const secret = "S3CRET"

// TestChecks runs each check on both sides of its rule. No message may hold the value.
func TestChecks(t *testing.T) {
	t.Parallel()
	digits := regexp.MustCompile(`^\d+$`)
	zone := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", seconds)) }
	year := func(y int) time.Time { return time.Date(y, 6, 1, 0, 0, 0, 0, time.UTC) }
	for name, test := range map[string]struct {
		good []outbox.FieldErrors
		bad  []outbox.FieldErrors
		rule string
	}{
		"Text": {
			[]outbox.FieldErrors{outbox.Text("f", ""), outbox.Text("f", "世界 �")},
			[]outbox.FieldErrors{outbox.Text("f", secret+"\xff"), outbox.Text("f", secret+"\x00"), outbox.Text("f", "\xed\xa0\x80")}, "utf8",
		},
		"MinLen": {
			[]outbox.FieldErrors{outbox.MinLen("f", "éé", 2), outbox.MinLen("f", "", 0)},
			[]outbox.FieldErrors{outbox.MinLen("f", "é", 2), outbox.MinLen("f", secret, 7)}, "min_len",
		},
		"MaxLen": {
			[]outbox.FieldErrors{outbox.MaxLen("f", "éé", 2), outbox.MaxLen("f", "", 0)},
			[]outbox.FieldErrors{outbox.MaxLen("f", "ééé", 2), outbox.MaxLen("f", secret, 5)}, "max_len",
		},
		"Match": {
			[]outbox.FieldErrors{outbox.Match("f", "12", digits)},
			[]outbox.FieldErrors{outbox.Match("f", secret, digits), outbox.Match("f", "", digits)}, "pattern",
		},
		"Min": {
			[]outbox.FieldErrors{outbox.Min("f", int64(math.MinInt64), math.MinInt64), outbox.Min("f", 0.5, 0.5), outbox.Min("f", time.Second, time.Second)},
			[]outbox.FieldErrors{outbox.Min("f", int32(4), 5), outbox.Min("f", 0.4, 0.5), outbox.Min("f", time.Second-1, time.Second)}, "min",
		},
		"Max": {
			[]outbox.FieldErrors{outbox.Max("f", int64(math.MaxInt64), math.MaxInt64), outbox.Max("f", 0.5, 0.5)},
			[]outbox.FieldErrors{outbox.Max("f", int32(6), 5), outbox.Max("f", 0.6, 0.5)}, "max",
		},
		"Finite": {
			[]outbox.FieldErrors{outbox.Finite("f", 0), outbox.Finite("f", math.MaxFloat64), outbox.Finite("f", -math.SmallestNonzeroFloat64)},
			[]outbox.FieldErrors{outbox.Finite("f", math.NaN()), outbox.Finite("f", math.Inf(1)), outbox.Finite("f", math.Inf(-1))}, "float64",
		},
		"Instant": {
			[]outbox.FieldErrors{outbox.Instant("f", time.Time{}), outbox.Instant("f", year(0)), outbox.Instant("f", year(9999)), outbox.Instant("f", zone(-12*3600-60))},
			[]outbox.FieldErrors{outbox.Instant("f", year(-1)), outbox.Instant("f", year(10000)), outbox.Instant("f", zone(24*3600)), outbox.Instant("f", zone(3601))}, "timestamp",
		},
		"JSON": {
			[]outbox.FieldErrors{outbox.JSON("f", json.RawMessage(`null`)), outbox.JSON("f", json.RawMessage(` {"a":[1]} `))},
			[]outbox.FieldErrors{outbox.JSON("f", nil), outbox.JSON("f", json.RawMessage(secret)), outbox.JSON("f", json.RawMessage(`{} {}`))}, "json",
		},
		"MinBytes": {[]outbox.FieldErrors{outbox.MinBytes("f", 2, 2)}, []outbox.FieldErrors{outbox.MinBytes("f", 1, 2)}, "min_len"},
		"MaxBytes": {[]outbox.FieldErrors{outbox.MaxBytes("f", 2, 2)}, []outbox.FieldErrors{outbox.MaxBytes("f", 3, 2)}, "max_len"},
		"MinItems": {[]outbox.FieldErrors{outbox.MinItems("f", 2, 2)}, []outbox.FieldErrors{outbox.MinItems("f", 1, 2)}, "min_len"},
		"MaxItems": {[]outbox.FieldErrors{outbox.MaxItems("f", 2, 2)}, []outbox.FieldErrors{outbox.MaxItems("f", 3, 2)}, "max_len"},
		"Valid": {
			[]outbox.FieldErrors{outbox.Valid("f", outbox.Date{Year: 1, Month: 1, Day: 1})},
			[]outbox.FieldErrors{outbox.Valid("f", outbox.Date{})}, "date",
		},
		"Valid with a foreign error": {
			[]outbox.FieldErrors{outbox.Valid("f", foreign{})},
			[]outbox.FieldErrors{outbox.Valid("f", foreign{errors.New(secret)})}, "type",
		},
	} {
		for _, errs := range test.good {
			require.Nil(t, errs, name)
		}
		for _, errs := range test.bad {
			require.Len(t, errs, 1, name)
			require.Equal(t, "f", errs[0].Field, name)
			require.Equal(t, test.rule, errs[0].Rule, name)
			require.NotContains(t, errs[0].Message, secret, name)
		}
	}
}

type foreign struct{ err error }

func (f foreign) Validate() error { return f.err }

func TestMessagesCount(t *testing.T) {
	t.Parallel()
	require.EqualError(t, outbox.MinLen("f", "a", 2)[0], "f has 1 character, at least 2 needed")
	require.EqualError(t, outbox.MaxItems("f", 3, 0)[0], "f has 3 items, at most 0 allowed")
	require.EqualError(t, outbox.Max("f", 2*time.Hour, 90*time.Minute)[0], "f is above 1h30m0s")
}

func TestOptional(t *testing.T) {
	t.Parallel()
	require.Nil(t, outbox.Optional("f", nil, outbox.Text))
	require.Nil(t, outbox.Optional("f", new("x"), outbox.Text))
	require.Len(t, outbox.Optional("f", new("\xff"), outbox.Text), 1)
	require.Nil(t, outbox.IfAny(0, outbox.MinItems("f", 0, 1)))
	require.Len(t, outbox.IfAny(1, outbox.MinItems("f", 1, 2)), 1)
	require.Nil(t, outbox.All(nil, nil))
	require.Len(t, outbox.All(outbox.Text("f", "\xff"), nil, outbox.MinLen("f", "\xff", 2)), 2)
}

func TestEach(t *testing.T) {
	t.Parallel()
	require.Nil(t, outbox.Each("f", nil, outbox.Text))
	errs := outbox.Each("f", []string{"a", "\xff", "b", "\x00"}, outbox.Text)
	require.Equal(t, outbox.FieldErrors{
		{Field: "f[1]", Rule: "utf8", Message: "is not valid UTF-8"},
		{Field: "f[3]", Rule: "utf8", Message: "holds a NUL byte"},
	}, errs)
	nested := outbox.Each("f", [][]string{nil, {"\xff"}}, outbox.EachIn(outbox.Text))
	require.Equal(t, "f[1][0]", nested[0].Field)
	many := outbox.Each("f", strings.Split(strings.Repeat("\xff,", 100), ","), outbox.Text)
	require.Len(t, many, 8, "a long list is cut")
}

// TestEachValue runs often, since maps have no order: the result must.
func TestEachValue(t *testing.T) {
	t.Parallel()
	entries := map[string]string{"a\xff": "\xff", "b\x00": "x", "\xffc": "\x00", secret: "\xff"}
	want := outbox.EachValue("f", entries, outbox.Text)
	require.Equal(t, []string{"f[*]", "f[*].key"}, []string{want[0].Field, want[1].Field})
	require.Len(t, want, 2)
	for range 50 {
		require.Equal(t, want, outbox.EachValue("f", entries, outbox.Text))
	}
	require.NotContains(t, fmt.Sprint(want), secret)
	require.Nil(t, outbox.EachValue("f", map[string]int{"a": 1}, outbox.AnyValue))
	nested := outbox.EachValue("f", map[string]map[string]string{"a": {"b": "\xff"}}, outbox.EachValueIn(outbox.Text))
	require.Equal(t, "f[*][*]", nested[0].Field)
}

func TestChecksDoNotAllocate(t *testing.T) { //nolint:paralleltest // counts allocations
	tags := []string{"a", "b"}
	day := outbox.Date{Year: 2026, Month: 1, Day: 1}
	note := "n"
	allocs := testing.AllocsPerRun(100, func() {
		err := outbox.Check("a/b",
			outbox.Text("note", note),
			outbox.MaxLen("note", note, 10),
			outbox.Optional("maybe", &note, outbox.Text),
			outbox.Each("tags", tags, outbox.Text),
			outbox.Min("n", int64(3), 0),
			outbox.Valid("day", day),
		)
		if err != nil {
			panic(err)
		}
	})
	require.LessOrEqual(t, allocs, 0.0)
}
