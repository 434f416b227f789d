package payload_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/payload"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	require.NoError(t, payload.Check("a/b"))
	require.NoError(t, payload.Check("a/b", nil, payload.FieldErrors{}))
	err := payload.Check("a/b", payload.Text("x", "\xff"), nil, payload.Min("y.z", 1, 2))
	require.ErrorIs(t, err, payload.ErrInvalid)
	require.EqualError(t, err, "validate a/b: x is not valid UTF-8; y.z is below 2")
	var invalid *payload.ValidationError
	require.ErrorAs(t, err, &invalid)
	require.Equal(t, "a/b", invalid.Topic)
	require.Len(t, invalid.Fields, 2)
}

type color string

func TestEnum(t *testing.T) {
	t.Parallel()
	require.NoError(t, payload.Enum("color", color("red"), "green", "red"))
	for _, bad := range []color{"", "RED", secret} {
		err := payload.Enum("color", bad, "green", "red")
		require.EqualError(t, err, "validate color: the value is not one of green, red")
		require.ErrorIs(t, err, payload.ErrInvalid)
	}
}

type inner struct{ errs payload.FieldErrors }

func (i inner) Validate() error { return payload.Check("inner", i.errs) }

func TestParseEnum(t *testing.T) {
	t.Parallel()
	got, err := payload.ParseEnum("color", "red", color("green"), "red", "")
	require.NoError(t, err)
	require.Equal(t, color("red"), got)
	got, err = payload.ParseEnum("color", "blue", color("green"), "dark red", "")
	require.EqualError(t, err, `validate color: the value is not one of green, "dark red", ""`)
	require.ErrorIs(t, err, payload.ErrInvalid)
	require.Empty(t, got)
}

func TestValidNests(t *testing.T) {
	t.Parallel()
	errs := payload.Valid("outer", inner{payload.FieldErrors{{Field: "a"}, {Field: "[1]"}, {Field: "b.c"}, {}}})
	paths := make([]string, len(errs))
	for i, e := range errs {
		paths[i] = e.Field
	}
	require.Equal(t, []string{"outer.a", "outer[1]", "outer.b.c", "outer"}, paths)
	require.Equal(t, "list[0].a", payload.Each("list", []inner{{payload.FieldErrors{{Field: "a"}}}}, payload.Valid)[0].Field)
}

func ExampleValidationError() {
	err := payload.Check("mini_chat/turn_finalized",
		payload.MaxLen("model", "a-very-long-name", 8),
		payload.Min("usage.input_tokens", int64(-1), 0),
	)
	var invalid *payload.ValidationError
	if errors.As(err, &invalid) {
		for _, f := range invalid.Fields {
			fmt.Println(f.Field, f.Rule)
		}
	}
	fmt.Println(err)
	// Output:
	// model max_len
	// usage.input_tokens min
	// validate mini_chat/turn_finalized: model has 16 characters, at most 8 allowed; usage.input_tokens is below 0
}
