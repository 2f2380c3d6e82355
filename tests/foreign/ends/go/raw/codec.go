// Package raw is what both ends have in common: messages that are bytes.
package raw

// BytesMax is the largest message that an end takes.
const BytesMax = 4 << 20

// Codec sends bytes as they are.
type Codec struct{}

// Marshal returns the bytes of a message.
func (Codec) Marshal(value any) ([]byte, error) { return *value.(*[]byte), nil }

// Unmarshal keeps a copy of what came.
func (Codec) Unmarshal(data []byte, value any) error {
	*value.(*[]byte) = append([]byte(nil), data...)
	return nil
}

// Name is what the library asks for.
func (Codec) Name() string { return "proto" }
