package example;

import com.google.gson.Gson;
import java.util.LinkedHashMap;
import java.util.Map;

/** Objects as lines of JSON. */
final class Lines {
  private static final Gson GSON = new Gson();

  private Lines() {}

  /** Returns an object of keys and values by turns. */
  static Map<String, Object> line(Object... keysAndValues) {
    Map<String, Object> line = new LinkedHashMap<>();
    for (int position = 0; position < keysAndValues.length; position += 2) {
      line.put((String) keysAndValues[position], keysAndValues[position + 1]);
    }
    return line;
  }

  /** Prints an object. */
  static void tell(Map<String, Object> line) {
    System.out.println(GSON.toJson(line));
    System.out.flush();
  }
}
