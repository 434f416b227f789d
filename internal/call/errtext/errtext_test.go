package errtext_test

import (
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/outboxgen/outboxgen/internal/call/errtext"
)

func TestJoin(t *testing.T) {
	t.Parallel()
	require.NoError(t, errtext.Join())
	require.NoError(t, errtext.Join(nil, nil))
	require.Equal(t, io.EOF, errtext.Join(nil, io.EOF, nil))
	err := errtext.Join(io.EOF, nil, io.ErrClosedPipe, errors.ErrUnsupported)
	require.EqualError(t, err, "EOF; io: read/write on closed pipe; unsupported operation")
	for _, part := range []error{io.EOF, io.ErrClosedPipe, errors.ErrUnsupported} {
		require.ErrorIs(t, err, part)
	}
}

func TestWithout(t *testing.T) {
	t.Parallel()
	require.NoError(t, errtext.Without("E", nil))
	require.Equal(t, io.EOF, errtext.Without("OF", io.EOF))
	err := errtext.Without("io: ", io.ErrClosedPipe)
	require.EqualError(t, err, "read/write on closed pipe")
	require.ErrorIs(t, err, io.ErrClosedPipe)
}
