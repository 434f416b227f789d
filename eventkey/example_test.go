package eventkey_test

import (
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/outboxgen/outboxgen/eventkey"
	"github.com/outboxgen/outboxgen/payload"
)

// A key is made of the values of payload fields. An empty field is an error of the enqueue, because the events of all
// payloads without it would be duplicates of each other.
func ExampleNewKey() {
	tenant := uuid.MustParse("01890a5d-ac96-774b-bcce-b302099a8057")
	fmt.Println(eventkey.NewKey(eventkey.UUIDPart("tenant_id", tenant), eventkey.StringPart("path", "a/b")))
	fmt.Println(eventkey.NewKey(eventkey.UUIDPart("tenant_id", uuid.Nil)).Err())
	// Output:
	// 01890a5d-ac96-774b-bcce-b302099a8057/a%2Fb
	// render key: field tenant_id: empty key part
}

// The parts of a key may be dates, numbers and literals as well, with text before or after their value.
func ExampleKeyPart_Affix() {
	day := payload.Date{Year: 2026, Month: time.March, Day: 1}
	fmt.Println(eventkey.NewKey(
		eventkey.LiteralPart("report"), eventkey.DatePart("day", day), eventkey.IntPart("page", int32(3)).Affix("page-", "")))
	// Output: report/2026-03-01/page-3
}
