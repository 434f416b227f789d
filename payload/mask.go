package payload

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
)

// mask replaces a sensitive value.
const mask = "[masked]"

// FormatMasked writes the struct v to w as {Field:value ...}, with the fields named in sensitive masked. The Format
// methods of generated structs with sensitive fields call it, so that no verb of package fmt shows such a value.
func FormatMasked(w io.Writer, v any, sensitive ...string) {
	var b strings.Builder
	b.WriteByte('{')
	s := reflect.ValueOf(v)
	for i := range s.NumField() {
		if i > 0 {
			b.WriteByte(' ')
		}
		name := s.Type().Field(i).Name
		b.WriteString(name)
		b.WriteByte(':')
		if slices.Contains(sensitive, name) {
			b.WriteString(mask)
			continue
		}
		formatPlain(&b, s.Field(i))
	}
	b.WriteByte('}')
	_, _ = io.WriteString(w, b.String())
}

// formatPlain writes a field that is not sensitive. It follows the pointer of an optional field. A nested struct masks
// its own sensitive fields.
func formatPlain(b *strings.Builder, v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			b.WriteString("<nil>")
			return
		}
		v = v.Elem()
	}
	if v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		fmt.Fprintf(b, "%q", v.Bytes())
		return
	}
	fmt.Fprintf(b, "%+v", v.Interface())
}
