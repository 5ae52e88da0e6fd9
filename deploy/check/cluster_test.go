package check

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kubernetes "k8s.io/client-go/kubernetes/scheme"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// cluster reads objects as a cluster with the Gateway API and the Prometheus operator does that refuses unknown fields.
var cluster = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{kubernetes.AddToScheme, gateway.Install, monitoring.AddToScheme} {
		utilruntime.Must(add(scheme))
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// admit reads what a chart has rendered, as a cluster does. An unknown field, a wrong type and a missing field are mistakes.
func admit(t *testing.T, files map[string]string) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for text := range strings.SplitSeq("\n"+files[name], "\n---\n") {
			if strings.TrimSpace(text) == "" {
				continue
			}
			object, _, err := cluster.Decode([]byte(text), nil, nil)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, text)
				continue
			}
			for _, path := range missing(t, text, object) {
				t.Errorf("%s: %s is required, in\n%s", name, path, text)
			}
			objects = append(objects, object)
		}
	}
	return objects
}

// missing names the fields that an object must have and this text lacks. The types of Kubernetes leave out a field
// without a value if it is optional, and write it otherwise.
func missing(t *testing.T, text string, object runtime.Object) []string {
	t.Helper()
	var given, whole any
	if err := yaml.Unmarshal([]byte(text), &given); err != nil {
		t.Fatal(err)
	}
	written, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(written, &whole)
	}
	if err != nil {
		t.Fatal(err)
	}
	delete(whole.(map[string]any), "status") // the cluster's own
	return added("", given, whole)
}

// added names what an object has besides what is given, but for empty objects.
func added(path string, given, whole any) []string {
	var paths []string
	switch whole := whole.(type) {
	case map[string]any:
		given, _ := given.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(whole)) {
			paths = append(paths, added(path+"."+key, given[key], whole[key])...)
		}
	case []any:
		given, _ := given.([]any)
		for i, value := range whole {
			var of any
			if i < len(given) {
				of = given[i]
			}
			paths = append(paths, added(fmt.Sprintf("%s[%d]", path, i), of, value)...)
		}
	default:
		if given == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// pick is the only object of a kind.
func pick[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := all[T](objects)
	if len(found) != 1 {
		t.Fatalf("there are %d %v, not one", len(found), reflect.TypeFor[T]())
	}
	return found[0]
}

// all are the objects of a kind.
func all[T runtime.Object](objects []runtime.Object) []T {
	var found []T
	for _, object := range objects {
		if of, ok := object.(T); ok {
			found = append(found, of)
		}
	}
	return found
}

// TestAdmit: a cluster refuses what the check is there for.
func TestAdmit(t *testing.T) {
	for text, want := range map[string]string{
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{prot: 1}]}}":                                              "unknown field",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {Ports: [{port: 1}]}}":                                              "unknown field",
		"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: http}]}}":                                           "cannot unmarshal",
		"{apiVersion: monitoring.coreos.com/v1, kind: ServiceMonitor, metadata: {name: a}, spec: {selector: {}, endpoint: []}}":         "unknown field",
		"{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: a}, spec: {rules: [{timeouts: {requests: 1s}}]}}": "unknown field",
		"{apiVersion: policy/v1beta1, kind: Budget}":                                                                                    "no kind",
	} {
		if _, _, err := cluster.Decode([]byte("---\n"+text), nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	const ingress = "---\n{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: a}, spec: {rules: [{http: {paths: [{path: /, backend: {service: {name: a}}}]}}]}}"
	object, _, err := cluster.Decode([]byte(ingress), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if paths := missing(t, ingress, object); !slices.Equal(paths, []string{".spec.rules[0].http.paths[0].pathType"}) {
		t.Errorf("what is missing is %q", paths)
	}
}
