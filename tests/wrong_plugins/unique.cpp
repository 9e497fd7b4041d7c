// A symbol of which the process has one, whatever dlopen was told: two versions of the plugin would share it.
template <class T>
struct __attribute__((visibility("default"))) WrongUnique {
  static int counter;
};
template <class T>
int WrongUnique<T>::counter = 0;

int* wrong_unique() { return &WrongUnique<int>::counter; }
