package decision

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// strictJSON reads and writes JSON as the schema says it, where connect's own drops keys that it does not know, so that a misspelt
// "retry_after_ms" would never be missed, and leaves out what is 0, so that a client has to know that there would have been a
// "retry": false.
type strictJSON struct{ name string }

// jsonCodecs are for both of the names that clients call JSON by.
func jsonCodecs() connect.Option {
	return connect.WithOptions(connect.WithCodec(strictJSON{"json"}), connect.WithCodec(strictJSON{"json; charset=utf-8"}))
}

var errNoProto = errors.New("no message of the schema")

// Name is the subtype in the Content-Type.
func (c strictJSON) Name() string { return c.name }

// Marshal writes every field that has no presence of its own.
func (c strictJSON) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend is what connect calls where a codec has it, with a buffer that it keeps.
func (c strictJSON) MarshalAppend(b []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, errNoProto
	}
	if results, ok := m.(*pb.ReportBatchResponse); ok {
		if b, ok = appendResults(b, results); ok {
			return b, nil
		}
	}
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.MarshalAppend(b, m)
}

// Unmarshal refuses what the schema does not have.
func (c strictJSON) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return errNoProto
	}
	if len(data) == 0 {
		return errors.New("the body is empty: want a JSON object, such as {}")
	}
	if batch, ok := m.(*pb.ReportBatchRequest); ok && readReports(data, batch) {
		return nil
	}
	if err := (protojson.UnmarshalOptions{}).Unmarshal(data, m); err != nil {
		d := m.ProtoReflect().Descriptor()
		return fmt.Errorf("%s: %s has %s", jsonProblem(err), d.Name(), fieldsOf(d))
	}
	return nil
}

var jsonPlace = regexp.MustCompile(`^proto:.*?\((line [0-9]+:[0-9]+)\): `)

// jsonProblem is what is wrong, first, and where. The package says on purpose that its words are not to be relied upon; they are for people.
func jsonProblem(err error) string {
	text := err.Error()
	if m := jsonPlace.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):] + " (" + m[1] + ")"
	}
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// fieldsOf lists the fields of a message, those of messages in it in braces.
func fieldsOf(d protoreflect.MessageDescriptor) string {
	if d.Fields().Len() == 0 {
		return "no fields"
	}
	var names []string
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		name := string(f.Name())
		if m := f.Message(); m != nil {
			name += " {" + fieldsOf(m) + "}"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}
