package outbox_test

import (
	"io"
)

var _ io.Writer = (*spy)(nil)
